"""What both services share: faults, settings, logs, listening, metrics and the life of a gRPC server.

It knows neither service: nothing here imports a contract, a policy or a model.
"""
