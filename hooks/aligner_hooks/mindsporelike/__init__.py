"""What all nets have alike that run on MindSpore's cells: its own, and those of OpenI's MindTorch.

rewritten.py finds the class that the user wrote behind the one that mixed precision wrote; casts.py knows the flags
that `to_float` sets; operators.py has plain words for MindSpore's operators, classes.py those of them that Python
calls; seen.py is what a compiled graph shows of a tensor; nets.py finds the net behind what MindSpore puts around it;
optimizers.py reads and makes optimizers, training.py tells of training steps and makes them;
compiler.py asks MindSpore's compiler, and graphs/ observes what it compiles; undropped.py keeps functions and operators
from dropping, modes.py holds the mode that MindSpore runs in.

The adapters differ in their MindSpore (2.5 here, 2.10 there): what depends on it stands in compiler.py.
"""
