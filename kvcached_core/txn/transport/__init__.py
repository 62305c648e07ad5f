"""Transactions between processes of one machine: where the machines meet sockets and clocks."""

from .client import TERMS, Transactions
from .server import RankServer
from .wire import Hello

__all__ = ["TERMS", "Hello", "RankServer", "Transactions"]
