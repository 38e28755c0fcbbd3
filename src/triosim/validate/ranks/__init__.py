"""What runs in the processes of a validation: one rank each, in PyTorch.

* ``networks``       the networks that are run;
* ``modes``          ways to run one: by itself, DDP, FSDP2, tensor parallel, GPipe, 1F1B;
* ``communication``  what collectives and transfers take, over sizes;
* ``software``       what the framework does around them: copies, sums, dispatch;
* ``rounds``         all of these in turns, in the same processes;
* ``__main__``       one process: ``python -m triosim.validate.ranks FOLDER RANK``.
"""
