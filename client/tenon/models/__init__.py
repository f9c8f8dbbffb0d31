"""The model store of this machine: which models there are by name, where they lie, how they come.

Models travel inside packages of a Python index, so that whoever can install Tenon can fetch one.
"""
