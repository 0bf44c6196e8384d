package agent

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

var server = cmp.Or(os.Getenv("VLLM_VCR_URL"), "http://localhost:8000")

func vcr(t *testing.T, method, path string, body any) {
	t.Helper()
	sent, _ := json.Marshal(body)
	request, _ := http.NewRequest(method, server+path, strings.NewReader(string(sent)))
	request.Header.Set("content-type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if read, _ := io.ReadAll(answer.Body); answer.StatusCode >= 400 {
		t.Fatal(string(read))
	}
}

// baseURL opens a session that plays cassettes/NAME.yaml, or records it, and returns the URL for the test's clients.
func baseURL(t *testing.T) string {
	t.Helper()
	name := regexp.MustCompile(`[^A-Za-z0-9_.-]+`).ReplaceAllString(t.Name(), "-")
	mode := cmp.Or(os.Getenv("VLLM_VCR_MODE"), "none")
	opened := map[string]string{"name": name, "cassette": name + ".yaml", "mode": mode, "if_unended": "drop"}
	vcr(t, "POST", "/vcr/sessions", opened)
	t.Cleanup(func() {
		recorded := map[bool]string{true: "drop", false: "keep"}[t.Failed()]
		vcr(t, "DELETE", "/vcr/sessions/"+name+"?recorded="+recorded, map[string]string{})
	})
	return server + "/vcr/s/" + name + "/v1"
}
