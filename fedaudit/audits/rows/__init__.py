"""Anonymous updates as rows of numbers: directions, sketches, products, traits to link them by.

Shared by the audits that link or name updates.
"""
