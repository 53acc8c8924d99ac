"""The exactness laboratory: is a verifier as lossless as it says, and how small a bias would have been seen?"""
