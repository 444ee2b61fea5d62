"""What the launchers of several hosts tell one another: how they meet, who is there, and why it
ended. Node 0 judges, the same for every host."""
