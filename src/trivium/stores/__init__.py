"""Reads and writes objects at the URLs of object stores (s3://, gs://, hf://).

Publishes folders there: a manifest is written last, so that what is found is complete.
"""
