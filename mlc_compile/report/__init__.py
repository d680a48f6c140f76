"""What a build did and why, for people and scripts."""
