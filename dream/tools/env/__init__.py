"""What works on this machine: versions, devices, launcher, and backends, each of them tried.

facts       what is found without starting anything
tries       two ranks that add something up over every backend, one job a framework
worker      what runs in these ranks
report      for people, and what to paste into a bug report
"""
