"""The exactness laboratory: how a verifier's word that it is lossless is tested, and how much the test could have seen."""
