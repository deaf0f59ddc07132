"""Pipeline parallelism: each rank holds some of the layers."""
