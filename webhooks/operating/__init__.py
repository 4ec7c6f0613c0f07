"""What operators see and do, whether they use the command line or the dashboard."""
