"""Do tokens depend on a verifier's arguments alone? All else is changed: seeds, company, earlier calls, long use."""
