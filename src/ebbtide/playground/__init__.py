"""A world to play in: hosts that boot, machines that fail, pods that obey or do not, replies that get lost.

Its state follows from the acts done upon it and from its clock; nothing in it ticks. With a journal it
survives the process that runs it, as the real world would.
"""
