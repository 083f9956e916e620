"""What an installation consists of, and under which licences."""
