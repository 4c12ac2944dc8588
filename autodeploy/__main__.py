"""`python -m autodeploy`: the program `autodeploy`."""

from autodeploy.cli.main import run

if __name__ == "__main__":
    run()
