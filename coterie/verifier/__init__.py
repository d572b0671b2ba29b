"""The verifier: a reward model that reads a question and an answer, and gives the probability that the answer is right.

Its data, its training, its evaluation and its server.
"""
