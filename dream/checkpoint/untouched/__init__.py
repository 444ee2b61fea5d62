"""Trainings whose scripts load nothing, gone on with all the same: in a loop over counted items."""
