//! `--answers`: reading files of answers, and reading them again while the server runs.

use std::{sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::interval};

use crate::{
    base::one_line::counted,
    cli::{failure::Failure, output, redaction::shown, runtime},
    replay::player::{AnswerRules, CassettePlayer},
};

/// Time between looks at the files.
const LOOK: Duration = Duration::from_millis(500);

/// Reads the files again at SIGHUP, and when they change. Where one of them is wrong, what was read before stays.
pub(in crate::cli) fn keep_reading(player: Option<&CassettePlayer>) -> Result<(), Failure> {
    let Some(rules) = player.and_then(|player| player.config().answers.clone()) else { return Ok(()) };
    tokio::spawn(read_at_change(Arc::clone(&rules)));
    runtime::at_hangups(move || reload(&rules))
}

async fn read_at_change(rules: Arc<AnswerRules>) {
    let mut looks = interval(LOOK);
    loop {
        looks.tick().await;
        let rules = Arc::clone(&rules);
        let look = move || {
            if rules.has_changed() {
                reload(&rules);
            }
        };
        drop(spawn_blocking(look).await);
    }
}

fn reload(rules: &AnswerRules) {
    match rules.reload() {
        Ok(count) => output::note(&format!("answers: read {} again\n", counted(count, "rule"))),
        Err(error) => output::warn(&format!("answers: the earlier rules stay in use: {}\n", shown(&error.to_string()))),
    }
}
