"""What stand-alone scripts are joined from: clients, generated files, and what a case gives them."""
