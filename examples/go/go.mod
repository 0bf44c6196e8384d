module example.com/vllm-vcr-go-example

go 1.22
