"""What a step costs on this machine, and hence what a trace's acceptance is worth in tokens a second."""
