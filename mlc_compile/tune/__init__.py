"""Find, for each kernel of a model, the point of its space that is fastest on a machine.

tasks       the kernels of a model that have a space, and what they weigh
search      which points to try next; cost_model: which of them look fast
workshop    builds points as libraries, in processes of this machine
measure     what a measurement is; runner: times a point beside the rules' default
local       runs them on this machine; remote: on devices, which rpc reaches through a tracker
session     rounds over all tasks until time or trials are up; what wins becomes a record
roof        how near a kernel comes to what memory allows
"""
