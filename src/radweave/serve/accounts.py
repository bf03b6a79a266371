"""What users change of their own way in: passwords, and tokens that are taken back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from radweave.base.errors import InputError
from radweave.serve import log, users
from radweave.serve.access import COOKIE, Asking, Here, one_password, refuse_disabled, tries
from radweave.serve.users import User

router = APIRouter(prefix="/api/v1")
TokenName = Annotated[str, Path(max_length=64)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewPassword(_Body):
    """The password that there is (for one's own, where there is one), and the one to come."""

    old: str = Field(default="", max_length=users.LONGEST_PASSWORD)
    new: str = Field(max_length=users.LONGEST_PASSWORD)


@router.put("/users/{number}/password", tags=["users"], status_code=204)
def change_password(number: int, given: NewPassword, request: Request, user: Asking, here: Here) -> None:
    """Change one's own password, or as an admin another user's. All tokens and other sessions of that user end."""
    _refuse_others(user, number)
    counted = tries(request)
    keys = {f"password {user.id}": counted.most}
    counted.begin(keys)
    with one_password(), here.database.writing() as connection:
        refuse_disabled(connection, user)
        _there(users.user_names(connection), number)
        own = number == user.id
        is_asked = own and users.has_password(connection, number)
        if is_asked and users.by_password(connection, user.name, given.old) is None:
            raise InputError("is not the password", field="old")
        counted.succeed(keys)
        users.set_password(connection, number, given.new, keep=request.cookies.get(COOKIE, "") if own else "")
        log.append(connection, "password changed", user=user.id, details={"user": number})


@router.get("/users/{number}/tokens", tags=["users"])
def list_tokens(number: int, user: Asking, here: Here) -> dict[str, Any]:
    """The tokens of a user; of each its name and its time, for the token itself is not kept."""
    _refuse_others(user, number)
    with here.database.reading() as connection:
        return {"tokens": users.tokens_of(connection, number)}


@router.delete("/users/{number}/tokens/{token}", tags=["users"], status_code=204)
def revoke(number: int, token: TokenName, request: Request, user: Asking, here: Here) -> None:
    """Take a token back. All other sessions of that user end, for they may have been opened with it."""
    _refuse_others(user, number)
    keep = request.cookies.get(COOKIE, "") if number == user.id else ""
    with here.database.writing() as connection:
        refuse_disabled(connection, user)
        if not users.revoke_token(connection, number, token, keep=keep):
            raise HTTPException(404, "no such token")
        log.append(connection, "token revoked", user=user.id, details={"user": number})


def _refuse_others(user: User, number: int) -> None:
    if not user.is_admin and number != user.id:
        raise HTTPException(403, "this needs the role admin")


def _there(names: dict[int | None, str], number: int) -> None:
    if number not in names:
        raise InputError("no such user", field="number", got=number)
