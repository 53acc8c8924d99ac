"""Bets on served texts: does every token follow the model's own distribution?"""
