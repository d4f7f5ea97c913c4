"""Checkpoints by themselves: .pth, .ckpt, safetensors, shards, dumps; no net runs, no framework is imported.

opening -> Checkpoint of Weights (offsets into files) -> items -> pairing -> comparing -> report, or -> converting -> a
new file. The readers are pth (with pickles and rebuilt), ckpt, safetensors, folder and dumped; every file is untrusted.
"""
