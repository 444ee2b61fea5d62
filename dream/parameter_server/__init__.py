"""Asynchronous training, whatever the framework: workers, servers, and what they tell one another.

Workers compute gradients and servers hold the parameters and run the optimizer. The first server
also coordinates: it deals the batches, keeps the clocks and counts. No framework is imported here;
one gives a `ServerOptimizer` to each server, and a `WorkerState` to each `Worker`.
"""
