"""Lines like "alice deposit 100" or "bob scale 0.5": each account's balance after each move. The order counts."""

from procession import Pipeline


def moved(balance: float, line: str) -> tuple[float, str]:
    account, what, amount = line.split()
    if what == "deposit":
        balance += float(amount)
    elif what == "withdraw":
        balance = max(0.0, balance - float(amount))  # at most the balance
    else:
        balance *= float(amount)
    return balance, f"{account} {balance:.2f}"


pipeline = Pipeline("running-balances", parallelism=2)
moves = pipeline.source("moves", codec="text")
balances = moves.map_stateful(moved, key=lambda line: line.split()[0], initial=0.0, name="accounts")
balances.sink("balances", to="file:output")
