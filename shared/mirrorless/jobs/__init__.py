"""What all jobs share: what they are asked, where they keep their files, how they tell their progress and report."""
