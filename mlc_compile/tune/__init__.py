"""Find, for each kernel of a model, the point of its space that is fastest on this machine.

tasks       the kernels of a model that have a space, and what they weigh
search      which points to try next; cost_model: which of them look fast
measure     build points and time them beside the rules' default, in processes of their own
session     rounds over all tasks until time or trials are up; what wins becomes a record
"""
