"""The number of a batch's rows, as a script reads it off a rank's share."""
