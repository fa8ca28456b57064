"""Benchmarks of Burstgate: one module a question, each run as `python -m burstgate_bench.NAME`."""
