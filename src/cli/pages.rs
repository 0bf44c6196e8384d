//! Completions and man pages, made from the table of flags.

use clap_complete::Shell;

use super::{
    args,
    failure::{Exit, Failure},
};

/// The completion script of `shell`.
pub(super) fn completions(shell: Shell) -> Vec<u8> {
    let mut command = args::command();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "vllm-vcr", &mut script);
    script
}

/// The man page of the program, or of the command that `path` leads to.
///
/// # Errors
/// When there is no such command.
pub(super) fn man(path: &[String]) -> Result<Vec<u8>, Failure> {
    let mut command = args::command();
    command.build();
    let mut title = command.get_name().to_owned();
    for name in path {
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| Failure::usage(format!("there is no command `{}`", path.join(" "))))?;
        title = format!("{title}-{name}");
    }
    let mut page = Vec::new();
    let command = command.name(title.clone()).display_name(title);
    clap_mangen::Man::new(command).render(&mut page).map_err(|error| Failure::new(Exit::Environment, error))?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        for path in [vec![], vec!["play"], vec!["inspect", "check"]] {
            let path: Vec<String> = path.into_iter().map(str::to_owned).collect();
            let page = String::from_utf8(man(&path).unwrap()).unwrap();
            assert!(page.contains(".SH NAME"), "{page}");
        }
        assert!(man(&["sing".to_owned()]).is_err());
    }

    #[test]
    fn completions_know_the_flags() {
        let script = String::from_utf8(completions(Shell::Bash)).unwrap();
        assert!(script.contains("--replay-tokens"));
    }
}
