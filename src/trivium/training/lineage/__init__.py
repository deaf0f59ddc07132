"""Find what a training consumed, and which document made a step spike, by replaying that step."""
