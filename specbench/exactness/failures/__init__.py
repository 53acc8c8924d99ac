"""The simplest request that shows what is wrong with a verifier, shrunk and in words."""
