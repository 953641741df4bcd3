"""Mixed load on real processes for as long as you like (`scripts/soak`): what grows, what gets lost?"""
