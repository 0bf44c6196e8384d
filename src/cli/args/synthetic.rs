//! Arguments of `play` about answers that nothing was recorded of.

use clap::Args;

use crate::engine::OutputTokens;

/// What made-up answers are like.
#[derive(Debug, Args)]
#[command(next_help_heading = "Made-up answers")]
pub(in crate::cli) struct SyntheticArgs {
    /// Tokens of a random answer that ends by itself: a number, a range such as 50..400, lognormal:MEAN,SIGMA (mean in tokens,
    /// standard deviation of the logarithm), or trace for the lengths of the served trace. A smaller max_tokens cuts it. Without it,
    /// max_tokens of them, or 128.
    #[arg(long, value_name = "LENGTH", conflicts_with = "strict")]
    pub(in crate::cli) output_tokens: Option<OutputTokens>,
    /// The share of random answers that end by themselves (finish_reason stop), from 0 to 1; the others end at max_tokens. Without it,
    /// 1 with --output-tokens and for requests without max_tokens, else 0.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "strict")]
    pub(in crate::cli) stop_rate: Option<f64>,
    /// The share of a random answer that is reasoning, from 0 to 1, where --reasoning-parser is set; without it, 0.5. With 1 it
    /// never ends.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(in crate::cli) reasoning_share: Option<f64>,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share from 0 to 1 is needed, such as 0.3".to_owned())
}
