"""SFT and RL on TRL's trainers."""
