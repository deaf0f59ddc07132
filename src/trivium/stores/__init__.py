"""Read and write objects at the URLs of object stores (s3://, gs://, hf://).

Folders are published there with the manifest last, so that a folder with a manifest is complete.
"""
