"""The verifier: a reward model that gives the probability that an answer to a question is right.

This room has its data, training, evaluation and HTTP server.
"""
