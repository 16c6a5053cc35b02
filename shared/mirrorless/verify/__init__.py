"""Verification: is the copy what the offset map says, and what the source holds?"""
