//! Confirmation of destructive commands.
//!
//! Not here: the calls that destroy.
//!
//! Invariant: without `--yes`, a command destroys nothing unless the user types the name at a
//! terminal.

use std::io::{self, BufRead, IsTerminal};

use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::cli::base::output;

/// Returns `Ok` if `yes` is set, or if the user types the object's name at the terminal.
pub(crate) fn destruction(what: &str, name: &str, yes: bool) -> Result<(), ApiError> {
    if yes {
        return Ok(());
    }
    let loss = Loss {
        refusal: format!("{what} {name} is not destroyed"),
        warning: format!("This destroys {what} {name} and all its data."),
        advice: "add --yes if everything in it may be lost",
    };
    at_terminal(&loss, name)
}

/// Returns `Ok` if `yes` is set, or if the user types the vdev's name at the terminal.
pub(crate) fn removal(pool: &str, vdev: &str, yes: bool) -> Result<(), ApiError> {
    if yes {
        return Ok(());
    }
    let loss = Loss {
        refusal: format!("{vdev} is not removed from pool {pool}"),
        warning: format!("This moves all data of {vdev} to the other vdevs of pool {pool}."),
        advice: "confirm at a terminal, or add --yes",
    };
    at_terminal(&loss, vdev)
}

/// Returns `Ok` if `yes` is set, or if the user types the snapshot's name at the terminal.
pub(crate) fn rollback(snapshot: &str, yes: bool) -> Result<(), ApiError> {
    if yes {
        return Ok(());
    }
    let loss = Loss {
        refusal: format!("not rolled back to {snapshot}"),
        warning: format!("This drops all changes after snapshot {snapshot}."),
        advice: "confirm at a terminal, or add --yes if these changes may be lost",
    };
    at_terminal(&loss, snapshot)
}

/// Returns `Ok` if `yes` is set, or if the user types the bookmark's name at the terminal.
pub(crate) fn bookmark(name: &str, yes: bool) -> Result<(), ApiError> {
    if yes {
        return Ok(());
    }
    let loss = Loss {
        refusal: format!("bookmark {name} is not destroyed"),
        warning: format!("After this, {name} can no longer be the base of an incremental stream."),
        advice: "add --yes if no incremental stream needs it",
    };
    at_terminal(&loss, name)
}

/// Texts of one confirmation: they describe the data that the user would lose.
struct Loss {
    refusal: String,
    warning: String,
    advice: &'static str,
}

fn at_terminal(loss: &Loss, name: &str) -> Result<(), ApiError> {
    let input = io::stdin();
    let terminal = input.is_terminal();
    ask(loss, name, terminal, input.lock())
}

fn ask(loss: &Loss, name: &str, terminal: bool, mut input: impl BufRead) -> Result<(), ApiError> {
    let Loss { refusal, warning, advice } = loss;
    let refused = |why: &str| ApiError::new(ErrorKind::Invalid, format!("{refusal}: {why}"));
    if !terminal {
        return Err(refused("there is no terminal to confirm at").with_action(*advice));
    }
    output::say(&format!("{warning} Type its name to continue:"));
    let mut line = String::new();
    input.read_line(&mut line).map_err(|error| refused(&error.to_string()))?;
    if line.trim() == name {
        return Ok(());
    }
    Err(refused("the name does not match").with_action("try again and type the name as shown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_typed_at_a_terminal_confirms() {
        let loss = Loss {
            refusal: "pool tank is not destroyed".to_owned(),
            warning: "This destroys pool tank and all its data.".to_owned(),
            advice: "add --yes if everything in it may be lost",
        };
        assert!(ask(&loss, "tank", true, "tank\n".as_bytes()).is_ok());
        for typed in ["", "\n", "yes\n", "Tank\n", "tank2\n"] {
            let error = ask(&loss, "tank", true, typed.as_bytes()).expect_err(typed);
            assert_eq!(error.kind, ErrorKind::Invalid);
        }
        let error = ask(&loss, "tank", false, "tank\n".as_bytes()).expect_err("no terminal");
        assert!(error.action.contains("--yes"), "{}", error.action);
    }
}
