"""The policy service: decides when a decode service speculates, and how wide."""
