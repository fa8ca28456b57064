"""Scores policies that decide between plain and speculative steps, on simulated and recorded text.

A policy is asked for a grant before each burst and told what each step measured, as the decode service
does it; time is simulated. Nothing here loads a model, imports mlx or opens a connection.
"""
