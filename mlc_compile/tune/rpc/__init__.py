"""Timing on other machines, over TVM's RPC tracker.

tracker   what both ends tell a tracker: who is there, who is free, who offers itself
wire      the questions that go to the far end, and what it says of itself
answer    the far end: a process for each connection, which asks the same runner as at home
device    the far end's server: joins a tracker, and starts an `answer` for who connects
bridge    the near end: a process for each connection, which can be killed when nothing comes
fleet     all runners of one key that a tracker had free

RPC runs code that it is sent, whoever sends it: it is for networks where all are trusted.
"""
