"""From the files that MINDSPORE_DUMP_CONFIG wrote to an ordinary dump: `aligner import`.

    files (what lies in the folder) -> npy (one array) -> operations (who made and took what) -> calls (of which layer)
    -> importing (the dump)

MindSpore writes what each operator of a compiled graph got and made. Which layer an operator belongs to stands in its
name; what a layer got and handed on is told by who used which content.
"""
