"""`python -m autodeploy`: the program `autodeploy`."""

from autodeploy.cli.main import run_alone

if __name__ == "__main__":
    run_alone()
