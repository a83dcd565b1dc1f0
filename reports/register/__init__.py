"""Shows a register of verified qualifications, as a static site that anybody can host."""
