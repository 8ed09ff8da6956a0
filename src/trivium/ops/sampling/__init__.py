"""Choosing the next token: masks, penalties, filters, noise, argmax and logprobs, each a torch reference with fast paths beside it.

Every reduction runs over one row, so a row's result does not depend on what else is in the batch.
"""
