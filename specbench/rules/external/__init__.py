"""Other projects' verifiers, fed through their own functions: baselines in speed, subjects in exactness."""
