"""`dream plan`: forecast what a model will need on each device, before anything is rented."""
